"""Orders -> a sum for each customer and minute -> alerts, on Spark, each alert exactly once.

Needs a running server (`make run`) and Java 17 or later. Stop it, kill it, start it again with the same
checkpoint: it goes on where it was, and no alert is missing or comes twice.
"""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

ORDER = "customer string, total double, at timestamp"


def alerts(orders: DataFrame, limit: float) -> DataFrame:
    """Customers who order for more than `limit` within a minute; known when the minute is over."""
    order = f.from_json(f.col("body").cast("string"), ORDER)
    sums = (
        orders.select(order.alias("order"))
        .select("order.*")
        .withWatermark("at", "1 minute")
        .groupBy(f.window("at", "1 minute"), "customer")
        .agg(f.sum("total").alias("total"))
        .where(f.col("total") > limit)
    )
    return sums.selectExpr(
        "concat(customer, ' ordered for ', total, ' within a minute') as body",
        "customer as key",
        "if(total > 1000, 9, 4) as priority",
        "map('since', string(window.start)) as properties",
    )


def main() -> None:
    """Run until stopped; with --once, until everything that is there has been read."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--master", default="local[2]", help="where Spark runs")
    words.add_argument("--servers", default="127.0.0.1:7420", help="where Antiphon listens")
    words.add_argument("--checkpoint", default="alerts-checkpoint", help="what Spark remembers is kept here")
    words.add_argument("--limit", type=float, default=100.0)
    words.add_argument("--once", action="store_true", help="end when everything that is there has been read")
    told = words.parse_args()

    # Workers would take the first python3 of PATH, and not find our packages there.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.Builder()
        .master(told.master)
        .appName("alerts")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    orders = (
        spark.readStream.format("antiphon")
        .option("servers", told.servers)
        .option("subscribe", "topic:orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        alerts(orders, told.limit)
        .writeStream.format("antiphon")
        .option("servers", told.servers)
        .option("destination", "queue:alerts")
        .option("checkpointLocation", os.path.abspath(told.checkpoint))
    )
    (query.trigger(availableNow=True) if told.once else query).start().awaitTermination()


main()
