package authz

import (
	"errors"
	"strings"
	"testing"
)

// Facts about callers, and about targets, that are crossed with each other.
var (
	callers = map[string]struct {
		caller Caller
		facts  Facts
	}{
		"superuser":           {Caller{OID: 10, Superuser: true}, Facts{CallerExists: true, CallerSuperuser: true}},
		"superuser, no facts": {Caller{OID: 10, Superuser: true}, Facts{}},
		"promoted since":      {Caller{OID: 20}, Facts{CallerExists: true, CallerSuperuser: true}},
		"ordinary role":       {Caller{OID: 20}, Facts{CallerExists: true}},
		"dropped since":       {Caller{OID: 20}, Facts{}},
	}
	targets = map[string]Facts{
		"own backend":         {Found: true, Role: 20, RoleExists: true, HasPrivileges: true, BackendType: "client backend"},
		"member's backend":    {Found: true, Role: 30, RoleExists: true, HasPrivileges: true, BackendType: "client backend"},
		"parallel worker":     {Found: true, Role: 30, RoleExists: true, HasPrivileges: true, BackendType: "parallel worker"},
		"walsender":           {Found: true, Role: 30, RoleExists: true, HasPrivileges: true, BackendType: "walsender"},
		"type not visible":    {Found: true, Role: 30, RoleExists: true, HasPrivileges: true},
		"another's backend":   {Found: true, Role: 40, RoleExists: true, BackendType: "client backend"},
		"superuser's backend": {Found: true, Role: 10, RoleExists: true, RoleSuperuser: true, BackendType: "client backend"},
		"superuser's, member": {
			Found: true, Role: 10, RoleExists: true, RoleSuperuser: true, HasPrivileges: true, BackendType: "client backend",
		},
		"launcher": {
			Found: true, Role: 10, RoleExists: true, RoleSuperuser: true, BackendType: "logical replication launcher",
		},
		"checkpointer":         {Found: true, BackendType: "checkpointer"},
		"autovacuum worker":    {Found: true, BackendType: "autovacuum worker"},
		"autovacuum launcher":  {Found: true, BackendType: "autovacuum launcher"},
		"logging in, listed":   {Found: true, BackendType: "client backend"},
		"no role, type hidden": {Found: true},
		"not listed":           {},
		"role dropped":         {Found: true, Role: 50, BackendType: "client backend"},
		"role dropped, member": {Found: true, Role: 50, HasPrivileges: true, BackendType: "client backend"},
	}
	// The refusals for an ordinary role; a missing entry means that the role is allowed.
	refusals = map[string]string{
		"another's backend":    "privileges of the role whose process this is",
		"superuser's backend":  "processes of roles with the SUPERUSER attribute",
		"superuser's, member":  "processes of roles with the SUPERUSER attribute",
		"launcher":             "processes of roles with the SUPERUSER attribute",
		"checkpointer":         "auxiliary processes",
		"autovacuum worker":    "autovacuum processes",
		"autovacuum launcher":  "autovacuum processes",
		"logging in, listed":   "not authenticated yet",
		"no role, type hidden": "processes that do not run for a role",
		"not listed":           "processes that do not run for a role",
		"role dropped":         "privileges of the role whose process this is",
		"role dropped, member": "privileges of the role whose process this is",
	}
)

func TestDecide(t *testing.T) {
	for callerName, c := range callers {
		for targetName, target := range targets {
			t.Run(callerName+"/"+targetName, func(t *testing.T) {
				facts := target
				facts.CallerExists, facts.CallerSuperuser = c.facts.CallerExists, c.facts.CallerSuperuser
				want := ""
				switch callerName {
				case "ordinary role":
					want = refusals[targetName]
				case "dropped since":
					want = "no longer exists"
				}
				check(t, Decide(c.caller, 4711, facts), want)
			})
		}
	}
}

// check compares a decision with the detail wanted; empty: yes.
func check(t *testing.T, err error, detail string) {
	t.Helper()
	if detail == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	var d *Denied
	if !errors.As(err, &d) {
		t.Fatalf("answered %v, want a refusal", err)
	}
	if d.SQLState != "42501" || d.Message != "permission denied to get backtrace of process 4711" ||
		strings.Contains(d.Hint, "pg_get_backtrace_on_call(int)") == strings.Contains(d.Detail, "no longer exists") {
		t.Errorf("refused with %+v", d)
	}
	if !strings.Contains(d.Detail, detail) || !strings.HasSuffix(d.Detail, ".") {
		t.Errorf("detail %q, want one with %q", d.Detail, detail)
	}
}

// TestDecidePlan: roles that see the query of a process in pg_stat_activity see its plan.
func TestDecidePlan(t *testing.T) {
	caller := Caller{OID: 20}
	own := Facts{CallerExists: true, Found: true, Role: 20, RoleExists: true, HasPrivileges: true}
	other, gone, unlisted := own, own, own
	other.HasPrivileges, other.RoleSuperuser = false, true
	gone.CallerExists, unlisted.Found = false, false
	reads := func(f Facts) Facts { f.ReadsQueries = true; return f }
	for name, c := range map[string]struct {
		facts Facts
		want  string
	}{
		"own":                    {own, ""},
		"a superuser's":          {other, "permission denied to get the plan of process 4711"},
		"a superuser's, reader":  {reads(other), ""},
		"the reader is gone":     {reads(gone), "permission denied to get backtrace of process 4711"},
		"reader, no such entry":  {reads(unlisted), "permission denied to get the plan of process 4711"},
		"auxiliary":              {Facts{CallerExists: true, Found: true}, "permission denied to get the plan of process 4711"},
		"auxiliary, for readers": {reads(Facts{CallerExists: true, Found: true}), ""},
	} {
		got := ""
		var d *Denied
		if err := DecidePlan(caller, 4711, c.facts); errors.As(err, &d) {
			got = d.Message
		}
		if got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
