package authz

import (
	"context"
	"errors"
	"testing"
)

// TestDecideOnCall lists each kind of process: which ones are shown with names.
func TestDecideOnCall(t *testing.T) {
	t.Parallel()
	backend := Facts{CallerExists: true, Found: true, Role: 20, RoleExists: true, BackendType: clientBackend}
	with := func(change func(*Facts)) Facts {
		f := backend
		change(&f)
		return f
	}
	for name, c := range map[string]struct {
		caller Caller
		facts  Facts
		named  bool
		denied bool
	}{
		"a backend of another role":      {facts: backend, named: true},
		"an own backend":                 {facts: with(func(f *Facts) { f.HasPrivileges = true }), named: true},
		"a superuser's backend":          {facts: with(func(f *Facts) { f.RoleSuperuser = true })},
		"with privileges of a superuser": {facts: with(func(f *Facts) { f.RoleSuperuser, f.HasPrivileges = true, true })},
		"a dropped role's backend":       {facts: with(func(f *Facts) { f.RoleExists = false })},
		"an auxiliary process":           {facts: with(func(f *Facts) { f.Role, f.RoleExists, f.BackendType = 0, false, "checkpointer" })},
		"not logged in":                  {facts: with(func(f *Facts) { f.Role, f.RoleExists = 0, false })},
		"not listed":                     {facts: Facts{CallerExists: true}},
		"not listed, other facts":        {facts: with(func(f *Facts) { f.Found = false })},
		"a dropped caller":               {facts: with(func(f *Facts) { f.CallerExists = false }), denied: true},
		"a superuser now":                {facts: with(func(f *Facts) { f.CallerSuperuser, f.RoleSuperuser = true, true }), named: true},
		"a superuser at the call":        {caller: Caller{Superuser: true}, facts: Facts{}, named: true},
	} {
		named, err := DecideOnCall(c.caller, 7, c.facts)
		if named != c.named || (err != nil) != c.denied {
			t.Errorf("%s: named %v, error %v", name, named, err)
		}
	}
}

type brokenLooker struct{}

func (brokenLooker) Look(context.Context, int, uint32) (Facts, error) {
	return Facts{}, errors.New("no connection")
}

func (brokenLooker) LookAll(context.Context, []int, uint32) (map[int]Facts, error) {
	return nil, errors.New("no connection")
}

// TestAllowOnCallWithoutServer: stacks without names need no look-up, unless the request itself has ended.
func TestAllowOnCallWithoutServer(t *testing.T) {
	t.Parallel()
	p := &Policy{Looker: brokenLooker{}}
	if named, err := p.AllowOnCall(t.Context(), Caller{OID: 5}, 7); named || err != nil {
		t.Error(named, err)
	}
	if named, err := p.AllowOnCall(t.Context(), Caller{Superuser: true}, 7); !named || err != nil {
		t.Error(named, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if named, err := p.AllowOnCall(ended, Caller{OID: 5}, 7); named || err == nil {
		t.Error(named, err)
	}
}
