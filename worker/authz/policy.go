package authz

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/worker/limits"
)

// Policy decides whether a role may get the backtrace of a process. Package verb charges a role for the processes that
// a request names, before it calls these methods.
type Policy struct {
	Looker  Looker
	Limiter *limits.Limiter // limits the processes that requests do not name; nil: no limit
}

// Allow returns nil if the caller may get the backtrace of the process pid, and a *Denied if not. The caller must have
// verified that the process belongs to the cluster (see the package comment). For superusers Allow does not query the
// server, so it works even if the worker cannot connect.
func (p *Policy) Allow(ctx context.Context, caller Caller, pid int) error {
	return p.allow(ctx, caller, pid, Decide)
}

// AllowPlan is Allow for the plan that the process executes; see DecidePlan.
func (p *Policy) AllowPlan(ctx context.Context, caller Caller, pid int) error {
	return p.allow(ctx, caller, pid, DecidePlan)
}

func (p *Policy) allow(ctx context.Context, caller Caller, pid int, decide func(Caller, int, Facts) error) error {
	if caller.Superuser {
		return nil
	}
	facts, err := p.Looker.Look(ctx, pid, caller.OID)
	if err != nil {
		return unchecked(pid, err)
	}
	return decide(caller, pid, facts)
}

// AllowAll decides for several processes with one query, and returns the refusals by pid. Processes without an entry in
// the map may be captured. counted is the number of processes for which the role has already paid. For each further
// process that it allows, AllowAll takes a token from the Limiter.
func (p *Policy) AllowAll(ctx context.Context, caller Caller, pids []int, counted int) map[int]error {
	refused := make(map[int]error)
	if caller.Superuser {
		return refused
	}
	refuseAll := func(why func(pid int) error) map[int]error {
		for _, pid := range pids {
			refused[pid] = why(pid)
		}
		return refused
	}
	facts, err := p.Looker.LookAll(ctx, pids, caller.OID)
	if err != nil {
		return refuseAll(func(pid int) error { return unchecked(pid, err) })
	}
	allowed := 0
	for _, pid := range pids {
		err := Decide(caller, pid, facts[pid])
		if err == nil && allowed >= counted {
			err = p.take(caller.OID)
		}
		if err != nil {
			refused[pid] = err
			continue
		}
		allowed++
	}
	return refused
}

func (p *Policy) take(role uint32) error {
	if p.Limiter == nil {
		return nil
	}
	return p.Limiter.Take(role)
}

// unchecked returns the refusal if the facts could not be read.
func unchecked(pid int, err error) *Denied {
	d := &Denied{
		SQLState: ObjectNotInPrerequisite,
		Message:  fmt.Sprintf("could not check permission to get backtrace of process %d", pid),
		Detail:   "The backtrace worker cannot query the server at the moment.",
		Hint:     "Try again later, or ask a superuser: superusers are answered without this check.",
		Cause:    err,
	}
	var answer *pgconn.PgError
	if errors.As(err, &answer) && !transient(answer.Code) {
		d.SQLState = InternalError
		d.Detail = "The backtrace worker's query failed with SQLSTATE " + answer.Code + "."
		d.Hint = "See the log of the backtrace worker."
	}
	return d
}

// transient reports whether an SQLSTATE comes from the state of the server and not from the query. Examples are a lost
// connection, a lack of resources, a shutdown and a timeout.
func transient(code string) bool {
	if len(code) < 2 {
		return false
	}
	switch code[:2] {
	case "08", "28", "53", "55", "57":
		return true
	default:
		return false
	}
}
