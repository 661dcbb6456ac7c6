package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrNoRelease says that git does not have a commit.
var ErrNoRelease = errors.New("git does not have the commit")

// BuildRelease compiles the programs of a commit into dir. If commit is a directory instead, its
// programs are used.
func BuildRelease(ctx context.Context, commit, dir string) (Programs, error) {
	if filepath.IsAbs(commit) {
		return programsIn(commit), nil
	}
	root, err := command(ctx, "", "git", "rev-parse", "--show-toplevel")
	if err == nil {
		_, err = command(ctx, root, "git", "cat-file", "-e", commit+"^{commit}")
	}
	if err != nil {
		return Programs{}, fmt.Errorf("%w %s: %w", ErrNoRelease, commit, err)
	}
	source, archive := filepath.Join(dir, "source"), filepath.Join(dir, "source.tar")
	if err := os.MkdirAll(source, 0o700); err != nil {
		return Programs{}, err
	}
	if _, err := command(ctx, root, "git", "archive", "-o", archive, commit); err != nil {
		return Programs{}, err
	}
	if _, err := command(ctx, source, "tar", "-xf", archive); err != nil {
		return Programs{}, err
	}
	return build(ctx, source, filepath.Join(dir, "bin"))
}
