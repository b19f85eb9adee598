package store

import (
	"context"
	"errors"
	"slices"
)

// FindStack returns the stack with this id. It searches the hour in progress first, and then the closed hours, the newest
// first. It returns nil without an error if no hour has the stack.
func (r *Reader) FindStack(ctx context.Context, id int64) (*Stack, error) {
	var found *Stack
	keep := func(k *Stack) error {
		if k.ID != id {
			return nil
		}
		found = &Stack{}
		*found = *k
		found.Frames = slices.Clone(k.Frames)
		return errStop
	}
	err := r.live(func(s *Sweep) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		for i := range s.Stacks {
			if err := keep(&s.Stacks[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if found != nil {
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	for _, h := range slices.Backward(closedHours(r.dir, "")) {
		for _, path := range h.files("stacks") {
			err := readTable(ctx, path, -1<<63, 1<<63-1, func(list []Stack) error {
				for i := range list {
					if err := keep(&list[i]); err != nil {
						return err
					}
				}
				return nil
			})
			if found != nil {
				return found, nil
			}
			if err := r.damaged(err); err != nil && !errors.Is(err, errStop) {
				return nil, err
			}
		}
	}
	return nil, nil //nolint:nilnil // the documented answer for an unknown stack
}
