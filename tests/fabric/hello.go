//go:build !race

package fabric

import "time"

const defaultHello = 50 * time.Millisecond
