package clusterbpf

//go:generate go tool bpf2go -go-package clusterbpf -target amd64 -no-global-types -type head -type record -type level -type process -type wait_key -type wait_time cluster cluster.bpf.c -- -I../../bpf/headers -O2 -mcpu=v3 -Wall -Werror
