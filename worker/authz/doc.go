// Package authz decides which roles may get the backtrace of which process.
//
// The rules are the rules of pg_signal_backend and pg_terminate_backend. Superusers may see every process of the
// cluster. Other roles may see a process that runs for a role whose privileges they have, unless that role is a
// superuser. Decide is a pure function of facts. Lookup reads the facts from the server for each decision, because the
// caller's transaction may have an old snapshot. Policy combines Lookup and Decide with a rate limit for each role. A
// refusal is a *Denied, worded like PostgreSQL's own errors.
//
// The package does not know how requests arrive or how captures work, and does not query the operating system. Before a
// decision, package cluster has verified that the target is a process of this cluster, and has recorded its pid and
// start time. The capture checks both, so a reused pid cannot circumvent the decision.
package authz
