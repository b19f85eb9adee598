package source

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/moment"
)

// flameSession returns an active session; event is empty on the CPU.
func flameSession(pid int, user, event string) *moment.Session {
	s := &moment.Session{PID: pid, ServerPID: pid, Type: clientBackend, State: "active", User: user, UserOID: uint32(len(user))}
	if event != "" {
		s.Wait = &moment.Wait{Type: IO, Event: event}
	}
	return s
}

// stack splits frames that are separated by spaces, the outermost first.
func stack(s *moment.Session, frames string) takenStack {
	list := strings.Fields(frames)
	slices.Reverse(list)
	return takenStack{s, list}
}

// show prints a tree.
func show(f *Flame) string {
	var b strings.Builder
	for i := range f.Nodes {
		n := &f.Nodes[i]
		fmt.Fprintf(&b, "%s%s %.2f %.2f %.2f\n", strings.Repeat(" ", n.Depth), strings.Join(n.Functions, ">"), n.Active, n.Self, n.OnCPU)
	}
	return b.String()
}

// TestFlame: stacks make a tree with joined chains, and each stack represents its part of the active sessions.
func TestFlame(t *testing.T) {
	p, at := &past{}, time.Unix(1_700_000_000, 0)
	web, cron := flameSession(1, "web", ""), flameSession(2, "cron", "DataFileRead")
	for i := range 10 {
		// Two of four active sessions have a stack, one of each class.
		p.addStacks(at.Add(time.Duration(i+1)*time.Second), KindSampled, time.Second, []takenStack{
			stack(web, "main run exec sort"), stack(cron, "main run exec scan read"), {session: web}, {session: cron},
		})
	}
	p.addStacks(at.Add(20*time.Second), KindRecorded, time.Second, []takenStack{stack(web, "main run pl:f(int) postgres+0x12")})
	q := Query{Span: Span{at, at.Add(10 * time.Second)}}
	f := p.flame(q, Both)
	want := " 4.00 0.00 2.00\n main>run>exec 4.00 0.00 2.00\n  scan>read 2.00 2.00 0.00\n  sort 2.00 2.00 2.00\n"
	if got := show(f); got != want || f.OnCPU != 2 || f.OffCPU != 2 || f.Sampled != 20 || f.Recorded != 0 || f.Seconds != 10 {
		t.Errorf("%+v\n%s", f, got)
	}
	if got := show(p.flame(q, OnCPU)); got != " 2.00 0.00 2.00\n main>run>exec>sort 2.00 2.00 2.00\n" {
		t.Error(got)
	}
	q.Filter = Filter{{By: ByUser, Key: "cron"}}
	if got := show(p.flame(q, Both)); got != " 2.00 0.00 0.00\n main>run>exec>scan>read 2.00 2.00 0.00\n" {
		t.Error(got)
	}
	q = Query{Span: Span{at.Add(15 * time.Second), at.Add(30 * time.Second)}}
	f = p.flame(q, Both)
	if got := show(f); got != " 1.00 0.00 1.00\n main>run>pl:f(int)>[postgres] 1.00 1.00 1.00\n" || f.Recorded != 1 || f.Seconds != 1 {
		t.Errorf("%+v\n%s", f, got)
	}
	q.From = at.Add(time.Minute)
	q.To = q.From.Add(time.Minute)
	if f = p.flame(q, Both); len(f.Nodes) != 0 || f.Seconds != 0 {
		t.Errorf("a span without stacks: %+v", f)
	}
}

// TestFlameWithoutStacks: a stack does not represent sessions on the other side, or sessions that the filter leaves
// out.
func TestFlameWithoutStacks(t *testing.T) {
	p, at := &past{}, time.Unix(1_700_000_000, 0)
	web, cron := flameSession(1, "web", ""), flameSession(2, "cron", "DataFileRead")
	p.addStacks(at.Add(time.Second), KindSampled, time.Second, []takenStack{{session: web}, {session: web}, stack(cron, "main read")})
	q := Query{Span: Span{at, at.Add(time.Second)}}
	if got := show(p.flame(q, Both)); got != " 3.00 0.00 2.00\n [no stack was taken] 2.00 2.00 2.00\n main>read 1.00 1.00 0.00\n" {
		t.Errorf("%q", got)
	}
	q.Filter = Filter{{By: ByUser, Key: "web"}}
	if f := p.flame(q, Both); show(f) != " 2.00 0.00 2.00\n [no stack was taken] 2.00 2.00 2.00\n" || f.Sampled != 0 {
		t.Errorf("%+v", f)
	}
}

// TestFlameBounds: many different stacks, long names and deep stacks keep the log and the answer bounded, and the newest
// stacks stay.
func TestFlameBounds(t *testing.T) {
	p, at := &past{}, time.Unix(1_700_000_000, 0)
	s := flameSession(1, "web", "")
	deep := strings.Repeat(" f", 1000)
	const sets = 3 * maxStacks
	for i := range sets {
		x := s
		if i%100 == 0 {
			x = flameSession(1, fmt.Sprint("user", i), "")
		}
		name := fmt.Sprint("g", i)
		if i%1000 == 0 {
			name = strings.Repeat("x", 1<<20)
		}
		p.addStacks(at.Add(time.Duration(i)*time.Second), KindSampled, time.Second, []takenStack{stack(x, name+" h"), {session: x}, stack(x, "top"+deep)})
	}
	k := &p.stacks
	if len(k.stacks) > maxStacks+2 || len(k.sets) > maxStackSets || k.frames > maxStackFrames+2*maxStackDepth || len(k.names.list) > 2*maxStacks {
		t.Errorf("%d stacks, %d sets, %d frames, %d names", len(k.stacks), len(k.sets), k.frames, len(k.names.list))
	}
	f := p.flame(Query{Span: Span{at, at.Add(sets * time.Second)}}, Both)
	if len(f.Nodes) > maxFlameNodes || f.LeftOut == 0 {
		t.Errorf("%d nodes, %d left out", len(f.Nodes), f.LeftOut)
	}
	newest := p.flame(Query{Span: Span{at.Add((sets - 2) * time.Second), at.Add(sets * time.Second)}}, Both)
	if got := show(newest); !strings.Contains(got, fmt.Sprint("g", sets-1)) || newest.Seconds < 0.9 {
		t.Errorf("the newest stacks are lost: %s", got)
	}
	total := 0.0
	for i := range f.Nodes {
		total += f.Nodes[i].Self
	}
	if total > f.Nodes[0].Active+1e-6 || math.IsNaN(total) {
		t.Errorf("the parts are %.3f of %.3f", total, f.Nodes[0].Active)
	}
	p.addStacks(at, KindSampled, time.Second, []takenStack{stack(s, "a")}) // the clock went back
	if len(p.stacks.sets) != 1 {
		t.Errorf("%d sets after the clock went back", len(p.stacks.sets))
	}
}

// TestFlameNeedsOperator: function names are names of users.
func TestFlameNeedsOperator(t *testing.T) {
	if _, err := (Nameless{}).Flame(t.Context(), Query{}, Both); !errors.Is(err, ErrNeedsOperator) {
		t.Error(err)
	}
}
