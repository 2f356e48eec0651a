"""The data pipeline: Antiphon as a source and a sink of Spark.

Where it sits
    Spark  ->  pyspark_antiphon  ->  PIPELINE  ->  antiphon.blocking  ->  the cluster

Foreign names stop here: what Spark calls `latestOffset` is called so in `source.py` and nowhere else. Nothing
in this package is imported before Spark, or `antiphon pipeline`, asks for it.
"""
