//go:build race

package softroce

// raceDetector says that the race detector is on, which makes a sync.Pool
// forget at random.
const raceDetector = true
