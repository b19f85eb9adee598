// Package waits times the wait events of a PostgreSQL server from outside, without a patch. Its figures are how often each
// process waited for each event, how long in total and at most, and a histogram.
//
// Every process of the server has the number of its wait event in shared memory while it waits. The methods differ in
// how they follow this number; see Method. Exact times system calls and Blocked times sleeps, both with BPF programs
// (waits.bpf.c). Sampled reads all numbers a hundred times a second.
//
// The package knows numbers of events and no names. Its caller says where the server's variables are, and decides on
// access to the figures.
package waits
