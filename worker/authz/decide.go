package authz

import (
	"errors"
	"fmt"
)

// Caller is the caller's role: current_user at the time of the call, which package spool has verified.
type Caller struct {
	OID       uint32
	Superuser bool // at the time of the call
}

// Facts is what the server knows now about the caller's role and the target process.
type Facts struct {
	CallerExists    bool // the role may have been dropped since the call
	CallerSuperuser bool
	Found           bool   // the target process has an entry in pg_stat_activity
	Role            uint32 // oid of the role that the target runs for, pg_stat_activity.usesysid; 0: none
	RoleExists      bool
	RoleSuperuser   bool
	HasPrivileges   bool   // the caller has the privileges of Role, as has_privs_of_role says
	BackendType     string // pg_stat_activity.backend_type; empty when the worker's role may not see it
	ReadsQueries    bool   // the caller has the privileges of pg_read_all_stats: pg_stat_activity shows it the query of every process
}

// Values of pg_stat_activity.backend_type that decide the wording of a refusal.
const (
	clientBackend      = "client backend"
	walSender          = "walsender"
	autovacuumWorker   = "autovacuum worker"
	autovacuumLauncher = "autovacuum launcher"
)

// Decide returns nil if the caller may get the backtrace of the process pid, and a *Denied if not.
//
// Parallel workers run for the role of their leader, walsenders and other background workers for the role that started
// them. Decide treats all of them as backends of this role. Only superusers may see processes that run for no role:
// auxiliary processes, autovacuum, and backends that have not logged in yet. pg_stat_activity may or may not list such
// backends.
func Decide(caller Caller, pid int, facts Facts) error {
	switch {
	case caller.Superuser:
		return nil
	case !facts.CallerExists:
		d := denied(pid, "The calling role no longer exists.")
		d.Hint = ""
		return d
	case facts.CallerSuperuser:
		return nil
	case !facts.Found || facts.Role == 0:
		d := denied(pid, onlySuperusers(withoutRole(facts)))
		d.Unlisted = !facts.Found
		return d
	case facts.RoleSuperuser:
		return denied(pid, onlySuperusers("processes of roles with the SUPERUSER attribute"))
	case !facts.RoleExists || !facts.HasPrivileges:
		return denied(pid, "Only roles with privileges of the role whose process this is may see its backtrace.")
	default:
		return nil
	}
}

// DecidePlan returns nil if the caller may see the plan that the process pid executes, and a *Denied if not. The caller needs
// what shows the column query of pg_stat_activity: the privileges of the process's role, or of pg_read_all_stats.
func DecidePlan(caller Caller, pid int, facts Facts) error {
	err := Decide(caller, pid, facts)
	if err == nil || facts.CallerExists && facts.Found && facts.ReadsQueries {
		return nil
	}
	var d *Denied
	if errors.As(err, &d) && facts.CallerExists {
		d.Message = fmt.Sprintf("permission denied to get the plan of process %d", pid)
		d.Detail = "Only roles that see the query of this process in pg_stat_activity may see its plan."
		d.Hint = "An administrator can grant pg_read_all_stats, with which a role sees the queries of all processes."
	}
	return err
}

// withoutRole returns words for the kind of a process that runs for no role.
func withoutRole(facts Facts) string {
	switch facts.BackendType {
	case autovacuumWorker, autovacuumLauncher:
		return "autovacuum processes"
	case clientBackend, walSender:
		return "processes that are not authenticated yet"
	case "":
		return "processes that do not run for a role"
	default:
		return "auxiliary processes"
	}
}

func onlySuperusers(targets string) string {
	return "Only roles with the SUPERUSER attribute may see backtraces of " + targets + "."
}

func denied(pid int, detail string) *Denied {
	return &Denied{
		SQLState: InsufficientPrivilege,
		Message:  fmt.Sprintf("permission denied to get backtrace of process %d", pid),
		Detail:   detail,
		// pg_get_backtrace_on_call shows every process, without the names and texts that the caller may not see.
		Hint: "An administrator can grant EXECUTE on function pg_get_backtrace_on_call(int), which shows the stack of any process.",
	}
}
