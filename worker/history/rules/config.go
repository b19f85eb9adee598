package rules

import (
	"fmt"
	"slices"
	"time"

	"pg_stat_backtrace/worker/report/units"
)

// The names of the rules.
const (
	LockWait    = "lock_wait"
	IdleBlocks  = "idle_in_transaction"
	Connections = "connections"
	CommitWait  = "commit_wait"
	DiskSleep   = "uninterruptible"
	LWLockWait  = "lwlock_wait"
	Starved     = "starved"
	Archiver    = "archiver"
	SameStack   = "same_stack"
	Checkpoint  = "checkpoint"
	Replay      = "replay"
	WALSender   = "wal_sender"
)

// Rule is the configuration of one rule.
type Rule struct {
	Name string `json:"name"`
	// Off is set if the rule is switched off.
	Off bool `json:"off,omitempty"`
	// After is the time for which the state must last; 0 for Connections.
	After time.Duration `json:"after_ns,omitempty"`
	// Above is the limit of Connections, in percent of the connection slots; 0 for the other rules.
	Above int `json:"above,omitempty"`
	// About describes the state that the rule finds.
	About string `json:"about"`
}

// Config has the settings of a file of rules.
type Config struct {
	Rules []Rule
	// Cooldown is the time for which a cause must have been absent before it can be an incident again.
	Cooldown time.Duration
	// Budget is the greatest number of incidents within an hour. Each role has a share of it; see Engine.room.
	Budget int
	// Keep is the greatest number of incidents that are kept, and Size the greatest size of all together, in bytes.
	Keep int
	Size int64
	// Webhook is the receiver of alerts; without a URL no alert is sent.
	Webhook Webhook
	// Command is the program that runs for each alert; without Run none runs.
	Command Command
}

// Webhook is the receiver of alerts.
type Webhook struct {
	// URL gets a POST in the format that Alertmanager sends to webhooks; empty: nothing is sent.
	URL string
	// Timeout bounds one request.
	Timeout time.Duration
}

// Bounds and defaults of Config.
const (
	minAfter      = 10 * time.Millisecond
	maxAfter      = 24 * time.Hour
	maxBudget     = 1000
	maxKeep       = 10_000
	minSize       = 1 << 20
	maxSize       = 1 << 40
	maxTimeout    = time.Minute
	defaultKeep   = 100
	defaultSize   = 200 << 20
	defaultBudget = 12
)

// Default returns the built-in rules.
func Default() Config {
	const archive, stack, checkpoint, replay, sender = 2 * time.Minute, 30 * time.Second, time.Minute, time.Minute, 30 * time.Second
	const (
		lock, idle, commit, disk, short, starved = 10 * time.Second, time.Minute, 10 * time.Second, 5 * time.Second, time.Second,
			5 * time.Second
		slots = 90
	)
	return Config{
		Rules: []Rule{
			{Name: LockWait, After: lock, About: "a session waits for a lock"},
			{Name: IdleBlocks, After: idle, About: "a session that is idle in transaction blocks others"},
			{Name: Connections, Above: slots, About: "the share of the connection slots in use, in percent"},
			{Name: CommitWait, After: commit, About: "a commit waits for a synchronous standby"},
			{Name: DiskSleep, After: disk, About: "a process is in uninterruptible sleep (state D), mostly for a disk"},
			{Name: LWLockWait, After: short, About: "a session waits for one LWLock and has not run meanwhile"},
			{Name: Starved, After: starved, About: "the worker was ready to run and got no processor"},
			{Name: Archiver, After: archive, About: "the archiver has not archived one file"},
			{Name: SameStack, After: stack, About: "a statement runs on a processor, and each sample has the same stack"},
			{Name: Checkpoint, After: checkpoint, About: "a checkpoint makes no progress"},
			{Name: Replay, After: replay, About: "replay on a standby does not advance while its lag grows"},
			{Name: WALSender, After: sender, About: "a receiver of WAL confirms nothing while its lag grows"},
		},
		Cooldown: 10 * time.Minute, Budget: defaultBudget, Keep: defaultKeep, Size: defaultSize, Webhook: Webhook{Timeout: 5 * time.Second},
		Command: Command{Timeout: maxCommandTime},
	}
}

// Rule returns the rule with a name; nil: there is none.
func (c *Config) Rule(name string) *Rule {
	i := slices.IndexFunc(c.Rules, func(r Rule) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Rules[i]
}

// on returns the rule with a name, and false if the rule is switched off.
func (c *Config) on(name string) (Rule, bool) {
	r := c.Rule(name)
	if r == nil || r.Off {
		return Rule{}, false
	}
	return *r, true
}

// Threshold returns the rule's limit in words.
func (r *Rule) Threshold() string {
	switch {
	case r.Off:
		return "off"
	case r.Name == Connections:
		return fmt.Sprintf("above %d %%", r.Above)
	}
	return "after " + units.Duration(r.After)
}
