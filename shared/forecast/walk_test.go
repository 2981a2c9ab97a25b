package forecast

// WalkAlways makes every pass of forecasts to come a walk over the whole queue.
func WalkAlways(always bool) { walkAlways = always }
