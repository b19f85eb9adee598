// Package sampler takes samples of many processes at a steady rate, by a program in the kernel (package samplerbpf). It
// stops no process. CopiedProcess makes snapshots of stacks that other programs in the kernel have copied.
package sampler
