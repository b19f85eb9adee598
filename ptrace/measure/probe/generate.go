package probe

//go:generate go tool bpf2go -target amd64,arm64 probe probe.bpf.c -- -I../../bpf/headers -O2 -mcpu=v3 -Wall -Werror
