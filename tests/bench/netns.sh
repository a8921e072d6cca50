#!/usr/bin/env bash
# Runs a server and a client with the kernel's own slow link between them: two network namespaces, a veth
# pair, tc's token bucket on both ends, and netem where delay or loss are asked for. Nothing of it is left.
#
#   tests/bench/netns.sh [--rate 40mbit] [--queue 50ms] [--delay 10ms] [--loss 1%] -- SERVER ... -- CLIENT ...
#
# The server has the address 10.73.0.1 and the client 10.73.0.2. The client is started once something has
# bound a UDP port there; when it has ended the server is told to (SIGTERM). The exit status is the client's,
# 2 for a fault in usage, and 77 where this machine cannot do it: no root, no ip or tc, no such kernel module.
set -euo pipefail

readonly SERVER_ADDRESS=10.73.0.1 CLIENT_ADDRESS=10.73.0.2 PATIENCE=60 DEVICE=kvcs0
readonly A="kvcs-a-$$" B="kvcs-b-$$"
rate=40mbit queue=50ms impaired=()

usage() {
    echo "netns.sh: $1; expected [--rate R] [--queue T] [--delay T] [--loss P] -- SERVER ... -- CLIENT ..." >&2
    exit 2
}

skip() {
    echo "netns.sh: skipped: $1" >&2
    exit 77
}

# shellcheck disable=SC2317 # the trap below calls it
clean_up() {
    if [ -n "${serving:-}" ]; then
        kill "$serving" 2>/dev/null || true
        wait "$serving" 2>/dev/null || true
    fi
    ip netns delete "$A" 2>/dev/null || true
    ip netns delete "$B" 2>/dev/null || true
}

# Shapes what leaves a namespace.
shape() {
    local within=(ip netns exec "$1" tc qdisc add dev "$DEVICE") parent=(root)
    if [ "${#impaired[@]}" -gt 0 ]; then
        "${within[@]}" root handle 1: netem limit 10000 "${impaired[@]}" || skip "no netem in this kernel"
        parent=(parent 1:1)
    fi
    "${within[@]}" "${parent[@]}" tbf rate "$rate" burst 32kb latency "$queue" || skip "tbf refused this"
}

# Whether anything in the server's namespace has a UDP port; the first line is the heading.
listens() {
    [ "$(ip netns exec "$A" cat /proc/net/udp /proc/net/udp6 | grep -cv 'local_address')" -gt 0 ]
}

while [ "$#" -gt 0 ] && [ "$1" != -- ]; do
    [ "$#" -gt 1 ] || usage "$1 has no value"
    case "$1" in
        --rate) rate=$2 ;;
        --queue) queue=$2 ;;
        --delay) impaired+=(delay "$2") ;;
        --loss) impaired+=(loss "$2") ;;
        *) usage "there is no $1" ;;
    esac
    shift 2
done
[ "$#" -gt 0 ] || usage "no server"
shift
server=()
while [ "$#" -gt 0 ] && [ "$1" != -- ]; do
    server+=("$1")
    shift
done
[ "${#server[@]}" -gt 0 ] || usage "no server"
[ "$#" -gt 1 ] || usage "no client"
shift

[ "$(id -u)" -eq 0 ] || skip "it needs root"
for tool in ip tc; do
    command -v "$tool" >/dev/null || skip "it needs $tool, of iproute2"
done

trap clean_up EXIT
trap 'exit 130' INT TERM
for namespace in "$A" "$B"; do
    ip netns add "$namespace" 2>/dev/null || skip "no network namespaces may be made here"
done
ip link add name "$DEVICE" netns "$A" type veth peer name "$DEVICE" netns "$B" || skip "no veth in this kernel"
ip -n "$A" address add "$SERVER_ADDRESS/24" dev "$DEVICE"
ip -n "$B" address add "$CLIENT_ADDRESS/24" dev "$DEVICE"
for namespace in "$A" "$B"; do
    ip -n "$namespace" link set lo up
    ip -n "$namespace" link set "$DEVICE" up
    shape "$namespace"
done

ip netns exec "$A" "${server[@]}" &
serving=$!
until listens; do
    kill -0 "$serving" 2>/dev/null || { echo "netns.sh: the server ended before it listened" >&2; exit 1; }
    [ "$SECONDS" -lt "$PATIENCE" ] || { echo "netns.sh: the server has bound no UDP port" >&2; exit 1; }
    sleep 0.1
done
status=0
ip netns exec "$B" "$@" || status=$?
exit "$status"
