// Package probebpf has the kernel run a program whenever processes pass an instruction (uprobe_multi): it counts every
// pass, and copies registers and stacks of a part of them.
//
// It must not know functions, names or how stacks are walked: its callers choose the instructions.
package probebpf

//go:generate go tool bpf2go -target amd64,arm64 probe probe.bpf.c -- -I../headers -O2 -mcpu=v3 -Wall -Werror
