package node

import "testing"

// BenchmarkLook measures one look at all processes of this host.
func BenchmarkLook(b *testing.B) {
	s := newScanner(Config{}.withDefaults())
	for b.Loop() {
		if err := s.lookAtAll(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(s.found)), "candidates")
	}
}

// BenchmarkNothingNew measures a look while no process starts.
func BenchmarkNothingNew(b *testing.B) {
	s := newScanner(Config{}.withDefaults())
	for b.Loop() {
		if _, known := s.newestProcess(); !known {
			b.Fatal("the newest process is unknown")
		}
	}
}
