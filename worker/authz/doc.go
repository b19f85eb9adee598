// Package authz decides who may have the backtrace of which process.
//
// The table is that of pg_signal_backend and pg_terminate_backend: superusers may see every process of the cluster;
// everybody else a process that runs for a role whose privileges he has, unless that role is a superuser. Decide is a
// pure function over facts; Lookup gets them from the server, freshly, because the caller's transaction may look at an
// old snapshot; Policy puts both together with a limit on how often a role may ask. A refusal is a *Denied in the terms
// and the style of PostgreSQL's own errors.
//
// It must not know how requests arrive and captures are made, and asks nothing of the operating system. That the target
// is a process of this cluster has been established before (package cluster), together with an identity that the
// capture is held to: a pid that passes to another process after the decision is no way around it.
package authz
