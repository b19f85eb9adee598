// Package clusterprofile samples the stacks of all processes of a PostgreSQL server, without stopping any of them, and
// labels each sample with what the process did by its own account: backend type, database, user, query id, wait event.
//
// The kernel programs read a process's entry in pg_stat_activity together with its stack. A reader outside of the
// kernel would read it later, when the process already does something else. Package activity is such a reader, for
// figures that need no stack. It also has the names of types and states.
//
// The package connects the kernel programs (ptrace/measure/clusterbpf), the names of stacks (worker/capture) and the
// server's structures. It returns a pprof profile. It must not know how the profile is printed or served.
package clusterprofile
