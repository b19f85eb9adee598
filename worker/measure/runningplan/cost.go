package runningplan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// maxCost bounds the processor time of a calibration in the server. It usually takes some hundred milliseconds.
const maxCost = 10 * time.Second

var errDear = errors.New("the comparison with EXPLAIN takes too much of the server's processor time")

// cost measures the processor time of the calibration's two sessions.
type cost struct {
	share float64               // see Calibrator.Share
	began map[int]time.Duration // processor time of each process when the calibration began
	used  time.Duration         // of both processes since then
	limit time.Duration         // of used
	// The field processor is the function processorTime, and the field after is time.After. Tests replace both.
	processor func(pid int) (time.Duration, error)
	after     func(time.Duration) <-chan time.Time
}

func newCost(share float64, pids ...int) *cost {
	c := &cost{share: share, began: map[int]time.Duration{}, limit: maxCost, processor: processorTime, after: time.After}
	for _, pid := range pids {
		if used, err := c.processor(pid); err == nil { // without these statistics in the kernel, the cost is not measured
			c.began[pid] = used
		}
	}
	return c
}

// add measures the processor time of the sessions. It then waits so long that their share of one processor since the last call is
// at most c.share. It returns errDear if they have used more than the limit.
func (c *cost) add(ctx context.Context) error {
	before := c.used
	c.used = 0
	for pid, began := range c.began {
		now, err := c.processor(pid)
		if err != nil {
			return err // the session has ended
		}
		c.used += now - began
	}
	if c.used > c.limit {
		return fmt.Errorf("%w: %s", errDear, c.used)
	}
	if c.share <= 0 || c.share >= 1 {
		return nil
	}
	pause := time.Duration(float64(c.used-before) * (1/c.share - 1))
	select {
	case <-c.after(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// processorTime returns the time for which a process has had a processor (schedstat in proc(5)).
func processorTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0, err
	}
	first, _, _ := bytes.Cut(text, []byte(" "))
	n, err := strconv.ParseInt(string(first), 10, 64)
	return time.Duration(n), err
}
