"""Makes `format("antiphon")` known to Spark.

Spark imports every module whose name begins with `pyspark_` and takes its `DefaultSource`. An error here
would break every data source written in Python, so nothing is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Antiphon as a source and a sink.

    >>> spark.read.format("antiphon").option("servers", "127.0.0.1:7420").option("subscribe", "topic:orders")
    """

    @classmethod
    def name(cls) -> str:
        return "antiphon"

    def schema(self) -> str:
        from antiphon.pipeline import source

        return source.schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from antiphon.pipeline import source

        return source.batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from antiphon.pipeline import source

        return source.stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from antiphon.pipeline import sink

        return sink.batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from antiphon.pipeline import sink

        return sink.stream_writer(dict(self.options), schema, overwrite)
