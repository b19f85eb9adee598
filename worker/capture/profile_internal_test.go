package capture

import (
	"errors"
	"io/fs"
	"os/exec"
	"slices"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace/measure/sampler"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestAlike: samples are counted together that have the same stack and the same state, and no others.
func TestAlike(t *testing.T) {
	t.Parallel()
	sleeper := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	s, err := sampler.New([]process.Target{{PID: sleeper.Process.Pid, UID: -1}},
		sampler.Options{Batch: 50 * time.Millisecond})
	if errors.Is(err, sampler.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := profile{capturer: newCapturer(t), sampler: s}
	enough := errors.New("enough")
	_, err = s.Run(t.Context(), func(list []sampler.Sample) error {
		first := list[0]
		if _, stacks := p.build(list[:1]); !stacks[0].trace.Threads[0].Whole {
			// It had not begun to execute its program when its mappings were read.
			_, err := s.Refresh(first.PID, first.MapsSnapshot)
			return err
		}
		variant := func(change func(*snapshot.Thread)) sampler.Sample {
			other := *first.Snapshot
			other.Threads = append([]snapshot.Thread(nil), first.Threads...)
			change(&other.Threads[0])
			return sampler.Sample{Snapshot: &other, Times: 1}
		}
		first.Times = 1
		same := variant(func(*snapshot.Thread) {})
		twice := sampler.Sample{Snapshot: same.Snapshot, Times: 2}
		ready := variant(func(th *snapshot.Thread) { th.State = 'R' })
		cut := variant(func(th *snapshot.Thread) { th.Stack.Data = th.Stack.Data[:len(th.Stack.Data)/2] })
		elsewhere := variant(func(th *snapshot.Thread) {
			const pc = 8 * 16 // of x86_64, the only architecture that has samples
			th.Registers = append([]byte(nil), th.Registers...)
			th.Registers[pc] ^= 1
		})
		_, stacks := p.build([]sampler.Sample{first, same, ready, twice, cut, cut, ready, elsewhere})
		got := make([]int, len(stacks))
		for i := range stacks {
			got[i] = stacks[i].times
		}
		if !slices.Equal(got, []int{4, 2, 1, 1, 1}) {
			t.Errorf("of one stack four times, ready twice, two that are cut, and another one: %v", got)
		}
		if a, b := stacks[0].trace, stacks[1].trace; a.Threads[0].State == 'R' || b.Threads[0].State != 'R' {
			t.Errorf("%+v, %+v", a.Threads[0], b.Threads[0])
		}
		return enough
	})
	if !errors.Is(err, enough) {
		t.Error(err)
	}
}
