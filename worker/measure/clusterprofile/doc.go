// Package clusterprofile samples the stacks of all processes of a PostgreSQL server, without stopping any of them. Each sample has
// labels from the process's entry in pg_stat_activity: backend type, database, user, query id, wait event and others.
//
// BPF programs in the kernel read the entry together with the stack. A reader outside of the kernel would read the entry later,
// when the process may already do something else. Package worker/pg/state is such a reader, for figures that need no stack. It also
// has the names of backend types and states.
//
// The package connects the BPF programs (ptrace/measure/clusterbpf), the names of stacks (worker/capture) and the
// server's structures. It returns a pprof profile. It must not know how the profile is printed or served.
package clusterprofile
