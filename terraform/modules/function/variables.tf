variable "project" {
  type        = string
  description = "Id of the project."
}

variable "region" {
  type        = string
  description = "Region of the workload."
}

variable "name" {
  type        = string
  description = "Name of the workload."
}

variable "image" {
  type        = string
  description = "Image that the first apply starts."
}

variable "account" {
  type        = string
  description = "Service account that the workload is, and nothing else is."
}

variable "env" {
  type        = map(string)
  description = "Environment of the function."
}

variable "secrets" {
  type        = map(string)
  default     = {}
  description = "Variables that are filled from the newest version of a secret: variable => id of the secret."
}

variable "target" {
  type        = string
  description = "FUNCTION_TARGET: which function of the image it is."
}

variable "max_instances" {
  type        = number
  default     = 20
  description = "Most containers."
}

variable "labels" {
  type        = map(string)
  default     = {}
  description = "Labels of the service."
}

variable "invokers" {
  type        = map(string)
  description = "IAM members that may call it, by a name for the plan."
}
