// Package snapshot has the data of a copied process: registers, stacks and mappings, and the options that say what to
// copy. Packages ptrace, observe and sampler make snapshots. The package makes no system call, and does not know how a
// process is copied. Its only knowledge of an architecture is the positions of registers in the kernel's structures.
package snapshot
