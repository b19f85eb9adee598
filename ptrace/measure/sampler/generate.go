package sampler

//go:generate go tool bpf2go -go-package sampler -target amd64 -type sample_target -type stack_sample -type cpu_state -type cpu_request sampler sampler.bpf.c -- -I../../bpf/headers -O2 -mcpu=v3 -Wall -Werror
