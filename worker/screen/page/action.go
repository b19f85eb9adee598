package page

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

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
	return json.Marshal(Answer{d, true, fmt.Sprintf("pg_stat_backtrace capture --nonstop %d", pid)})
}
