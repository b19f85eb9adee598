package page

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/screen/source"
	"pg_stat_backtrace/worker/screen/view"
)

// Capture reads stack, plan, memory, state and waits of the process pid. It returns an Answer as JSON. The error wraps
// source.ErrNoSession if the server has no process with this number.
func (p *Page) Capture(ctx context.Context, pid int) ([]byte, error) {
	src, err := p.watch(ctx)
	if err != nil {
		return nil, err
	}
	s := view.NewState("")
	s.Page, s.PID = view.PageSession, pid
	d := view.Fetch(ctx, src, s, nil, time.Now(), true, false)
	if d.Session == nil || d.Session.Now == nil {
		return nil, fmt.Errorf("process %d: %w", pid, source.ErrNoSession)
	}
	return json.Marshal(Answer{d, true, captureCommand(d)})
}

// captureCommand returns the command that captures the session of d by its process id on this host. While that is not known, such as
// directly after the start of a session in a container, it is a command that takes the server's process id.
func captureCommand(d *view.Data) string {
	now := d.Session.Now
	if d.Info != nil && d.Info.OwnPIDs && now.PID == now.ServerPID {
		return fmt.Sprintf("pg_stat_backtrace top -D %s --batch --pid %d", render.ShellWord(d.Info.DataDir), now.ServerPID)
	}
	return fmt.Sprintf("pg_stat_backtrace capture --nonstop %d", now.PID)
}
