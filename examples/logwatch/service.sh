# A service that goes wrong: its log is service.log.
: >service.log
for request in 1 2 3 4 5 6; do
    echo "$(date -u +%H:%M:%S) INFO request $request served" >>service.log
    sleep 0.3
done
echo "$(date -u +%H:%M:%S) WARN pool exhausted, 0 of 8 connections free" >>service.log
echo "$(date -u +%H:%M:%S) ERROR request 7 failed: no connection within 5 s" >>service.log
