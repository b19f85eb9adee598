// Package waits times the wait events of a PostgreSQL server from outside, without a patch: how often each process
// waited for each event, how long in total and at most, and a histogram.
//
// Every process of the server has the number of its wait event in shared memory while it waits. Four methods follow it.
// Exact times system calls and blocked times sleeps, by programs in the kernel (waits.bpf.c). Sampled reads all
// numbers a hundred times a second.
//
// The package knows numbers of events and no names, and learns from its caller where a server's variables are. Its
// caller decides on access to the figures.
package waits
