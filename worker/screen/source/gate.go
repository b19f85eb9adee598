package source

import (
	"context"
	"sync"
)

// A gate is a mutex for work that may wait for a disk for ever. A goroutine that waits for the gate can give up.
type gate struct {
	once sync.Once
	c    chan struct{} // has a value while the gate is locked
}

func (g *gate) channel() chan struct{} {
	g.once.Do(func() { g.c = make(chan struct{}, 1) })
	return g.c
}

// enter locks the gate. If ctx ends before, it returns the error of ctx.
func (g *gate) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case g.channel() <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave unlocks the gate.
func (g *gate) leave() { <-g.channel() }
