package allocs

//go:generate go tool bpf2go -go-package allocs -target amd64 -no-global-types -type alloc_block -type alloc_sums -type alloc_call -type alloc_stack -type alloc_code -type alloc_counters allocs allocs.bpf.c -- -I../../bpf/headers -O2 -mcpu=v3 -Wall -Werror
