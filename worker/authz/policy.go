package authz

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// Policy answers requests: first whether the role may ask again so soon, then whether it may ask for this process.
type Policy struct {
	Looker  Looker
	Limiter *Limiter // nil: no limit
}

// Allow says whether the caller may have the backtrace of the process pid: nil, or a *Denied. The process must have
// been identified as one of the cluster's before (see the package comment). Superusers are answered without a look at
// the server, which works also when the worker cannot connect, and are not limited.
func (p *Policy) Allow(ctx context.Context, caller Caller, pid int) error {
	if caller.Superuser {
		return nil
	}
	if err := p.take(caller.OID); err != nil {
		return err
	}
	facts, err := p.Looker.Look(ctx, pid, caller.OID)
	if err != nil {
		return unchecked(pid, err)
	}
	return Decide(caller, pid, facts)
}

// AllowAll decides for several processes with one look at the server, and returns the refusals by pid: those that are
// not in it may be captured. For the limit the request counts once, and each process beyond the first that is allowed
// once more.
func (p *Policy) AllowAll(ctx context.Context, caller Caller, pids []int) map[int]error {
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
	if err := p.take(caller.OID); err != nil {
		return refuseAll(func(int) error { return err })
	}
	facts, err := p.Looker.LookAll(ctx, pids, caller.OID)
	if err != nil {
		return refuseAll(func(pid int) error { return unchecked(pid, err) })
	}
	allowed := 0
	for _, pid := range pids {
		err := Decide(caller, pid, facts[pid])
		if err == nil && allowed > 0 {
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

// unchecked is the answer when the facts could not be had.
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

// transient reports whether an error of the server says something about the situation, not about the query: a lost
// connection, a lack of resources, an intervention such as a shutdown or a timeout.
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
