package waits

//go:generate go tool bpf2go -target bpfel,bpfeb -no-global-types -type slot -type event -type record -type query_key -type query_figures -type wait_stack waits waits.bpf.c -- -I../../bpf/headers -O2 -mcpu=v3 -Wall -Werror
