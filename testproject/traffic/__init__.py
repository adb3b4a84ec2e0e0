"""The traffic of a web site: the requests of its access log, counted by country and day.

`counting` publishes the log to a file channel and counts it, `access_log` finds and parses it, `origins`
looks up countries, `figures` prepares the numbers of the page.
"""
