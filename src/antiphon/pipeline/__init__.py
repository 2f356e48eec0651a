"""The data pipeline: Antiphon as a source and a sink of Spark.

    Spark  ->  pyspark_antiphon  ->  PIPELINE  ->  antiphon.blocking  ->  the cluster

Spark's names stay here: `latestOffset` is called so in `source.py` and nowhere else. Spark, or `antiphon
pipeline`, imports this package on demand.

Applications call `decode_body` on the columns `body` and `body_kind`, and the jobs (`jobs.calls`).
"""

from antiphon.pipeline.bodies import decode_body
from antiphon.pipeline.jobs.calls import archive, archive_files, audit, lag, replay

__all__ = ["archive", "archive_files", "audit", "decode_body", "lag", "replay"]
