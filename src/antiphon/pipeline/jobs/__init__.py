"""The jobs: what operators want from the history of a message system, done by Spark.

    archive   ->  manifest, folder (what an archive is)  ->  audit, replay
    lag       how far readers are behind

A job plans on Spark's driver, and Spark's tasks read ranges and files. `session` has Spark, and runs tasks.
"""
