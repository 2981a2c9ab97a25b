variable "project" {
  type        = string
  description = "Id of the project."
}

variable "prefix" {
  type        = string
  description = "What names of resources begin with."
}

variable "control" {
  type        = string
  description = "Name of the control plane's service."
}

variable "channels" {
  type        = list(string)
  description = "Where alerts go."
}

variable "limits" {
  type = object({
    queue_age        = number
    unschedulable    = number
    no_progress      = number
    unacked_age      = number
    http_error_share = number
  })
  description = "Limits of the alerts, in seconds; http_error_share is a share."
}
