//go:build !amd64

package probe

// Calibrate measures nothing on this architecture. It returns the zero Cost, which sessions replace by typical values. Its
// errors are those of Load.
func Calibrate() (Cost, error) {
	p, err := Load(Config{Probes: []Probe{{}}, Processes: 1})
	if err != nil {
		return Cost{}, err
	}
	p.Close()
	return Cost{}, nil
}
