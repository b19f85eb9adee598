package authz

import (
	"context"
	"time"
)

// DecideOnCall decides for a role with the grant for on-call staff (EXECUTE on pg_get_backtrace_on_call), which may get
// the stack of every process of the cluster. The result named reports whether the stack may contain texts, and names of
// users' objects: this is so for processes that Decide allows, and for backends of roles that are not superusers. It is
// false for a process that runs for no role, or for an unknown role: it may be a session of a superuser that has not
// logged in yet.
func DecideOnCall(caller Caller, pid int, facts Facts) (named bool, err error) {
	err = Decide(caller, pid, facts)
	switch {
	case err == nil:
		return true, nil
	case !facts.CallerExists:
		return false, err
	}
	return facts.Found && facts.Role != 0 && facts.RoleExists && !facts.RoleSuperuser, nil
}

// lookLimit bounds the time of the look-up for on-call staff. If the look-up takes longer, the stack is shown without
// names.
const lookLimit = time.Second

// AllowOnCall is like Allow, but for a role with the grant for on-call staff, see DecideOnCall. If the worker cannot
// query the server, for example because all its connections are taken, the role may get the stack without texts and
// names (named is false).
func (p *Policy) AllowOnCall(ctx context.Context, caller Caller, pid int) (named bool, err error) {
	if caller.Superuser {
		return true, nil
	}
	look, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	facts, err := p.Looker.Look(look, pid, caller.OID)
	if err != nil {
		return false, ctx.Err()
	}
	return DecideOnCall(caller, pid, facts)
}
