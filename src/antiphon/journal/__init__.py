"""The journal: durable records on a disk that may lose power at any moment.

    format           pages, blocks and records, to the byte
    superblock       the few facts kept in four copies
    journal          writing: append, flush, synced; roll-over and release of segments
    recovery         reading it all back after a crash: repair, cut the torn tail, or refuse
    opening          a journal that was read, before anything is written
    records          reading one record, verified
    payload_index    the places of envelopes
    checkpoints      state files beside the segments
    checkpoint_line  when such a file is begun, and which segments the files need
    parts            records gathered for a flush
    chores           slow work on files for a worker thread
    ports            the disk that all of it needs
    memory_disk      a disk that loses power when a test says so

Pure: files, threads and clocks are handed in by `runtime` or `sim`.
"""
