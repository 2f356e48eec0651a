"""The data pipeline: Antiphon as a source and a sink of Spark.

Where it sits
    Spark  ->  pyspark_antiphon  ->  PIPELINE  ->  antiphon.blocking  ->  the cluster

Foreign names stop here: what Spark calls `latestOffset` is called so in `source.py` and nowhere else. Nothing
in this package is imported before Spark, or `antiphon pipeline`, asks for it.

Applications call `decode_body` on the columns `body` and `body_kind`.
"""

from antiphon.pipeline.bodies import decode_body

__all__ = ["decode_body"]
