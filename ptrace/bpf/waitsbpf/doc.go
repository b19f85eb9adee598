// Package waitsbpf holds the kernel's part of wait-event timing: the programs of waits.bpf.c, compiled, and the Go
// types of their tables. It loads them, attaches them and reads their tables for package waits.
//
// The package knows the kernel and nothing about PostgreSQL except the offsets that its caller gives.
package waitsbpf

//go:generate go tool bpf2go -target bpfel,bpfeb -no-global-types -type slot -type event -type record -type query_key -type query_figures -type wait_stack waits waits.bpf.c -- -I../headers -O2 -mcpu=v3 -Wall -Werror
