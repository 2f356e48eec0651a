"""Simulated clients: processes around the core of the client library, and rude ones that speak frames.

process.py   what every client has: connections, patience, death
library.py   a client around the pure core of the client library
rude.py      a client that speaks frames by itself: sessions, numbers, consumers
queues.py    rude sessions that publish, consume and subscribe; `Publishing` is also the library's
holder.py    a rude session that reads ranges under a hold
bank.py      rude sessions that bring money into the bank
trader.py    a client of the library that moves money in transactions; some of them are rude
"""
