//go:build !amd64

package probe

import "pg_stat_backtrace/ptrace/bpf/probebpf"

// Calibrate measures nothing on this architecture: the zero value stands for a guess. Errors are those of Open.
func Calibrate() (Cost, error) {
	p, err := probebpf.Load(probebpf.Config{Probes: []probebpf.Probe{{}}, Processes: 1})
	if err != nil {
		return Cost{}, err
	}
	p.Close()
	return Cost{}, nil
}
