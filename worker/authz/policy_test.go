package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/worker/limits"
)

// answer is a Looker that has one answer, and counts.
type answer struct {
	facts Facts
	err   error
	asked int
}

func (a *answer) Look(context.Context, int, uint32) (Facts, error) {
	a.asked++
	return a.facts, a.err
}

func (a *answer) LookAll(_ context.Context, pids []int, _ uint32) (map[int]Facts, error) {
	a.asked++
	all := map[int]Facts{}
	for _, pid := range pids {
		if pid%2 == 0 { // the odd ones are another's
			all[pid] = a.facts
		}
	}
	return all, a.err
}

func TestAllowAll(t *testing.T) {
	allowed := Facts{CallerExists: true, Found: true, Role: 20, RoleExists: true, HasPrivileges: true}
	pids := []int{1, 2, 3, 4, 6, 8}
	now := time.Unix(1e9, 0)
	rate := limits.Rate{PerSecond: 1, Burst: 3, Now: func() time.Time { return now }}
	p := Policy{Looker: &answer{facts: allowed}, Limiter: limits.NewLimiter(rate)}
	states := func(refused map[int]error) (s []string) {
		for _, pid := range pids {
			var d *Denied
			switch {
			case isLimited(refused[pid]):
				s = append(s, limits.SQLState)
			case errors.As(refused[pid], &d):
				s = append(s, d.SQLState)
			default:
				s = append(s, "")
			}
		}
		return s
	}
	steps := []struct {
		caller Caller
		err    error
		want   []string
	}{
		{Caller{OID: 10, Superuser: true}, nil, []string{"", "", "", "", "", ""}},
		{Caller{OID: 20}, nil, []string{"42501", "", "42501", "", "", ""}}, // one was counted before
		{Caller{OID: 20}, nil, []string{"42501", "", "42501", "53400", "53400", "53400"}},
		{Caller{OID: 21}, errors.New("gone"), []string{"55000", "55000", "55000", "55000", "55000", "55000"}},
	}
	for i, step := range steps {
		p.Looker = &answer{facts: allowed, err: step.err}
		if got := states(p.AllowAll(t.Context(), step.caller, pids, 1)); !slices.Equal(got, step.want) {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

func TestAllow(t *testing.T) {
	allowed := Facts{CallerExists: true, Found: true, Role: 20, RoleExists: true, HasPrivileges: true}
	lost := errors.New("connection refused")
	for name, test := range map[string]struct {
		caller Caller
		looker answer
		state  string // SQLSTATE wanted; empty: yes
		asked  int
	}{
		"superuser needs no look":     {caller: Caller{OID: 10, Superuser: true}, looker: answer{err: lost}},
		"a look says yes":             {caller: Caller{OID: 20}, looker: answer{facts: allowed}, asked: 1},
		"a look says no":              {caller: Caller{OID: 20}, looker: answer{}, state: "42501", asked: 1},
		"no server":                   {caller: Caller{OID: 20}, looker: answer{err: lost}, state: "55000", asked: 1},
		"deadline":                    {Caller{OID: 20}, answer{err: context.DeadlineExceeded}, "55000", 1},
		"statement timeout":           {Caller{OID: 20}, answer{err: &pgconn.PgError{Code: "57014"}}, "55000", 1},
		"shutting down":               {Caller{OID: 20}, answer{err: &pgconn.PgError{Code: "57P03"}}, "55000", 1},
		"role may not look":           {Caller{OID: 20}, answer{err: &pgconn.PgError{Code: "42501"}}, "XX000", 1},
		"the query is wrong":          {Caller{OID: 20}, answer{err: &pgconn.PgError{Code: "42703"}}, "XX000", 1},
		"a server with no SQLSTATE":   {Caller{OID: 20}, answer{err: &pgconn.PgError{}}, "XX000", 1},
		"an error inside other words": {Caller{OID: 20}, answer{err: fmt.Errorf("x: %w", lost)}, "55000", 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := Policy{Looker: &test.looker}
			err := p.Allow(t.Context(), test.caller, 4711)
			state := ""
			var d *Denied
			if errors.As(err, &d) {
				state = d.SQLState
			}
			if state != test.state || (err == nil) != (state == "") {
				t.Errorf("answered %v (%s), want SQLSTATE %q", err, state, test.state)
			}
			if test.looker.asked != test.asked {
				t.Errorf("%d looks, want %d", test.looker.asked, test.asked)
			}
			if test.looker.err != nil && test.asked > 0 && !errors.Is(err, test.looker.err) {
				t.Errorf("the cause %v is not in %v", test.looker.err, err)
			}
		})
	}
}

func TestDeniedText(t *testing.T) {
	cause := errors.New("why")
	d := &Denied{Message: "no", Detail: "Not today.", Cause: cause}
	if d.Error() != "no: Not today." || !errors.Is(d, cause) {
		t.Errorf("%v, %v", d, errors.Unwrap(d))
	}
	if short := (&Denied{Message: "no"}).Error(); short != "no" {
		t.Errorf("%q", short)
	}
}

func isLimited(err error) bool {
	var e *limits.Exceeded
	return errors.As(err, &e)
}
