//go:build !amd64

package probe

// Calibrate measures nothing on this architecture and returns 0, for which sessions use a guess. Errors are those of
// Load.
func Calibrate() (Cost, error) {
	p, err := Load(Config{Probes: []Probe{{}}, Processes: 1})
	if err != nil {
		return Cost{}, err
	}
	p.Close()
	return Cost{}, nil
}
