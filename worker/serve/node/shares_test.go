package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func TestShares(t *testing.T) {
	t.Parallel()
	const a, b, c = 1, 2, 3
	for _, test := range []struct {
		wanted, have map[int]int
		workers      int
		want         string
	}{
		{map[int]int{a: 3}, nil, 10, "map[1:3]"},
		{map[int]int{a: 30}, nil, 10, "map[1:10]"},
		{map[int]int{a: 30, b: 1}, nil, 10, "map[1:9 2:1]"},
		{map[int]int{a: 30, b: 30}, nil, 10, "map[1:5 2:5]"},
		{map[int]int{a: 30, b: 30, c: 2}, nil, 10, "map[1:4 2:4 3:2]"},
		{map[int]int{a: 30, b: 30}, map[int]int{a: 4, b: 3}, 7, "map[1:4 2:3]"}, // nothing changes
		{map[int]int{a: 30, b: 30}, map[int]int{a: 3, b: 4}, 7, "map[1:3 2:4]"},
		{map[int]int{a: 1, b: 1}, nil, 1, "map[1:0 2:1]"},
		{map[int]int{a: 1}, nil, -1, "map[1:0]"},
	} {
		if got := fmt.Sprint(shares(test.wanted, test.have, test.workers)); got != test.want {
			t.Errorf("%d workers for %v, of which there are %v: %s, not %s", test.workers, test.wanted, test.have, got, test.want)
		}
	}
}

// crowd is a supervisor with given processes, whose workers are real ones.
type crowd struct {
	*supervisor

	t       *testing.T
	ctx     context.Context
	present map[key]Process
}

func newCrowd(t *testing.T, workers int) *crowd {
	t.Helper()
	c := &crowd{t: t, ctx: t.Context(), present: map[key]Process{}, supervisor: newSupervisor(Config{
		Max: workers, Log: zerolog.Nop(), Grace: time.Minute,
		Command: func(string, int, int, *os.File) *exec.Cmd { return exec.Command("cat") },
	})}
	c.proof = func(_ string, p Process) (string, error) { return p.DataDir, nil }
	t.Cleanup(func() {
		c.stopAll()
		c.close()
	})
	return c
}

// add adds processes of an account. Their ids belong to no process.
func (c *crowd) add(account, from, n int) {
	for pid := from; pid < from+n; pid++ {
		c.present[key{pid, 1}] = Process{
			PID: pid, Start: 1, DataDir: fmt.Sprintf("/%d/%d", account, pid), UID: account, Account: account,
		}
	}
	c.update(c.ctx, c.present, time.Now())
}

// await handles events until each account has its number of workers.
func (c *crowd) await(want map[int]int) {
	c.t.Helper()
	deadline := time.After(time.Minute)
	for {
		have, all := c.workers(running)
		if fmt.Sprint(have) == fmt.Sprint(want) {
			return
		}
		if _, all := c.workers(running, stopping); all > c.Max {
			c.t.Fatalf("%d workers at the same time", all)
		}
		select {
		case e := <-c.events:
			c.handle(c.ctx, e)
		case <-deadline:
			c.t.Fatalf("workers of the accounts: %v, not %v; %d run", have, want, all)
		}
	}
}

// TestOneUserCannotTakeAllWorkers: a server gets a worker although another user has more processes than there are
// workers. Servers of one user get all workers.
func TestOneUserCannotTakeAllWorkers(t *testing.T) {
	t.Parallel()
	const none, impostor, postgres, third = 5_000_000, 1000, 26, 27
	c := newCrowd(t, 4)
	c.add(impostor, none, 10)
	c.await(map[int]int{impostor: 4})
	c.add(postgres, none+100, 1)
	c.await(map[int]int{impostor: 3, postgres: 1})
	c.add(impostor, none+200, 10)
	c.add(third, none+300, 3)
	c.await(map[int]int{impostor: 2, postgres: 1, third: 1})
	for pid := none + 300; pid < none+303; pid++ { // the servers of the third user end
		delete(c.present, key{pid, 1})
	}
	c.update(c.ctx, c.present, time.Now())
	c.await(map[int]int{impostor: 3, postgres: 1})
}

// TestChurnIsLimited: servers that a user starts and ends all the time get few workers and proofs. The other users get
// theirs.
func TestChurnIsLimited(t *testing.T) {
	t.Parallel()
	s := newSupervisor(Config{Max: 4, Log: zerolog.Nop()})
	now := time.Unix(1000, 0)
	taken := map[string]int{}
	take := func(what string, b *bucket, r rate) {
		if b.take(now, r) {
			taken[what]++
		}
	}
	for range 1000 {
		now = now.Add(100 * time.Millisecond)
		take("starts", &s.budget(1000).starts, s.startRate())
		take("proofs", &s.budget(1000).proofs, s.proofRate())
	}
	if taken["starts"] > 2*8+51 || taken["starts"] < 50 || taken["proofs"] > 256+16+201 {
		t.Errorf("in 100 seconds: %v", taken)
	}
	if !s.budget(26).starts.take(now, s.startRate()) || !s.budget(26).proofs.take(now, s.proofRate()) {
		t.Error("another user has no budget")
	}
	for account := range 10 * maxBudgets {
		s.budget(account)
	}
	if n := len(s.budgets); n > maxBudgets {
		t.Errorf("%d budgets are kept", n)
	}
}

// TestLinesOfOneUser: the lines about the processes of one user leave room for those about others.
func TestLinesOfOneUser(t *testing.T) {
	t.Parallel()
	log := &journal{}
	s := newSupervisor(Config{Log: zerolog.New(log)})
	for pid := range 1000 {
		s.explain(&cluster{Process: Process{PID: pid, Account: 1000}}, "it is none")
	}
	s.explain(&cluster{Process: Process{PID: 4711, Account: 26}}, "another worker serves it")
	if log.count("another worker serves it") != 1 {
		t.Error("no line about the server of another user")
	}
}

// TestOwnerOfNamespacePays: the user ids of a user namespace belong to the account of the user that has made it.
func TestOwnerOfNamespacePays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give user ids to a namespace")
	}
	const nobody, first = 65534, 700_000
	command := exec.Command("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "unshare", "-U",
		"--keep-caps", "sh", "-c", "echo ready; read x; exec setpriv --reuid 5 sh -c 'echo changed; read x'")
	stdin, err1 := command.StdinPipe()
	stdout, err2 := command.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	line := make([]byte, 64)
	if _, err := stdout.Read(line); err != nil {
		t.Skip("no user namespaces here: ", err)
	}
	pid := command.Process.Pid
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/uid_map", pid), fmt.Appendf(nil, "0 %d 10", first), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(line); err != nil {
		t.Skip("the shell cannot change its user id: ", err)
	}
	if account := accountOf(pid, first+5); account != nobody {
		t.Errorf("account %d", account)
	}
	if account := accountOf(os.Getpid(), 4711); account != 4711 {
		t.Errorf("this process has the account %d", account)
	}
}
