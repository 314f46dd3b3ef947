#!/usr/bin/env bash
# `CL.THROTTLE` of `tidegate serve --resp` beside GET of redis-server, each server on the first processor and redis-benchmark on
# the second, in turns: bench/resp.sh [ROUNDS [KEYS]]. It prints the medians (least - most) of the rounds for pipelines of 1 and 16.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-7} keys=${2:-100000}
tidegate=${TIDEGATE:-target/release/tidegate}
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$folder"' EXIT

# Ports that nobody has: the first line of tidegate says its own, and Redis gets one that was just free.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
redis=$(free_port)
taskset -c 0 redis-server --port "$redis" --save "" --appendonly no --loglevel warning --dir "$folder" >"$folder/redis" &
redis_pid=$!
taskset -c 0 "$tidegate" serve --listen 127.0.0.1:0 --resp 127.0.0.1:0 --resp-keys "$((keys * 2))" >"$folder/tidegate" &
tidegate_pid=$!
until redis-cli -p "$redis" ping >/dev/null 2>&1; do sleep 0.1; done
until port=$(sed -n 's/^resp on .*://p' "$folder/tidegate") && [ -n "$port" ]; do sleep 0.1; done

# Microseconds of the processor that a server has used.
used() { awk -v hz="$(getconf CLK_TCK)" '{ print ($14 + $15) * 1000000 / hz }' "/proc/$1/stat"; }
# NAME PID PORT PIPELINE REQUESTS COMMAND...: calls a second, p50 and p99 in ms, processor of the server in us for a call.
ask() {
    local name=$1 pid=$2 port=$3 pipeline=$4 requests=$5 before after
    shift 5
    before=$(used "$pid")
    line=$(taskset -c 1 redis-benchmark -p "$port" -c 50 -P "$pipeline" -n "$requests" -r "$keys" --csv "$@" 2>/dev/null | tail -1)
    after=$(used "$pid")
    # The fields of a line are quoted, and a command has no comma in it.
    echo "$line" | tr -d '"' | awk -F, -v cpu="$((${after%.*} - ${before%.*}))" -v n="$requests" \
        '{ print $2, $5, $7, cpu / n }' >>"$folder/$name.$pipeline"
}

redis-benchmark -p "$redis" -P 16 -n "$((keys * 10))" -r "$keys" -t set -q >/dev/null 2>&1
for pipeline in 1 16; do
    requests=$((pipeline == 1 ? ${REQUESTS:-200000} : ${REQUESTS:-200000} * 10))
    for _ in $(seq "$rounds"); do
        ask redis-get "$redis_pid" "$redis" "$pipeline" "$requests" GET key:__rand_int__
        ask tidegate "$tidegate_pid" "$port" "$pipeline" "$requests" CL.THROTTLE key:__rand_int__ 15 30 60
        ask tidegate-ping "$tidegate_pid" "$port" "$pipeline" "$requests" PING
    done
done

median() { sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] " (" a[1] " - " a[NR] ")" }'; }
echo "| pipeline | | calls a second | p50 ms | p99 ms | us of the server |"
echo "| --- | --- | --- | --- | --- | --- |"
for pipeline in 1 16; do
    for name in redis-get tidegate tidegate-ping; do
        row="| $pipeline | $name |"
        for column in 1 2 3 4; do row+=" $(cut -d' ' -f$column "$folder/$name.$pipeline" | median) |"; done
        echo "$row"
    done
done
